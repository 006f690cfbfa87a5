#!/bin/sh
# Documents of captions, up to 4,500 tokens: data/long.sh [--local DIR] [--output DIR] [--seed N] [options of prepare.sh]
here=$(dirname "$0")
exec sh "$here/python.sh" "$here/long_captions.py" "$@"
