#!/bin/sh
# Prepare any pair of text files: data/prepare.sh --source-lang en --target-lang de --train PREFIX --output DIR; see --help.
exec sh "$(dirname "$0")/python.sh" -m specdec_plugins.commands.prepare "$@"
