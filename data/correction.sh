#!/bin/sh
# Captions with errors, and without: data/correction.sh [--local DIR] [--output DIR] [--rate X] [--seed N] [options of prepare.sh]
here=$(dirname "$0")
exec sh "$here/python.sh" "$here/correction.py" "$@"
