#!/bin/bash
# Checks that no two rooms define the same global name: the tests link the daemon and the client
# into one program, where a call could silently reach the other room's function.
#
#   scripts/check-names.sh FOLDER-OF-ARCHIVES
set -eu

twice=$(nm -A -g --defined-only "$1"/*.a 2>/dev/null |
    sed -nE 's|^.*/([^/]+\.a):([^:]+):[0-9a-f]+ [TDBR] (.+)$|\3 \1:\2|p' |
    sort -u | awk '$1 == name { print $1 ": " place " and " $2 } { name = $1; place = $2 }')
[ -z "$twice" ] && exit 0
echo "check-names: defined twice:" >&2
echo "$twice" >&2
exit 1
