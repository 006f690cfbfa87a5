#!/bin/sh
# Captions with and without errors: data/correction.sh [--local DIR] [--output DIR] [--rate X] [--seed N] [options of prepare.sh]
here=$(dirname "$0")
exec sh "$here/python.sh" "$here/correction.py" "$@"
