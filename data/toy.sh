#!/bin/sh
# A generated toy corpus: data/toy.sh [--output DIR] [options of prepare.sh]
here=$(dirname "$0")
output=$here/prepared/toy
if [ "$1" = --output ]; then
    output=$2
    shift 2
fi
sh "$here/python.sh" "$here/toy.py" --output "$output/source" || exit
exec sh "$here/prepare.sh" --source-lang xa --target-lang xb --train "$output/source/train" --valid "$output/source/valid" \
    --test "$output/source/test" --bpe-operations 1000 --max-ratio 3 --output "$output" "$@"
