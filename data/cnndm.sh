#!/bin/sh
# CNN/DailyMail, news articles and their summaries: data/cnndm.sh [--local DIR] [--output DIR] [--bart] [options of prepare.sh]
here=$(dirname "$0")
exec sh "$here/python.sh" "$here/cnndm.py" "$@"
