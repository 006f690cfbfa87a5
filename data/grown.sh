#!/bin/sh
# Documentation with a large verifier grown from the small one's: data/grown.sh --local DIR [--output DIR] [--seed N] [options of prepare.sh]
here=$(dirname "$0")
exec sh "$here/python.sh" "$here/grown.py" "$@"
