#!/bin/bash
# Checks the one-way layers: what a file may include follows from the room that it lives in.
# The table below is the only statement of it; a room that is not in the table is an error.
set -u
cd "${1:-$(dirname "$0")/..}"

status=0
complain() { echo "check-layers: $1: $2" >&2; status=1; }

# room -> the rooms that its files may include besides their own
declare -A may_include=(
    [proto]=""
    [kernels]="proto"
    [daemon/base]="proto"
    [daemon/device]="proto kernels daemon/base"
    [daemon/tier]="proto kernels daemon/base daemon/device"
    [daemon/store]="proto kernels daemon/base daemon/tier"
    [daemon/conn]="proto daemon/base"
    [daemon/peer]="proto kernels daemon/base daemon/device daemon/tier daemon/store"
    [daemon/api]="proto kernels daemon/base daemon/device daemon/tier daemon/store daemon/conn daemon/peer"
    [daemon/metrics]="proto kernels daemon/base daemon/device daemon/tier daemon/store daemon/conn daemon/peer daemon/api"
    [daemon]="proto kernels daemon/base daemon/device daemon/tier daemon/store daemon/conn daemon/peer daemon/api daemon/metrics"
    [client]="proto kernels"
    [client/ctl]="proto client kernels"
)

# foreign header (pattern) -> files (patterns) that may include it; anything else may be included
# anywhere
foreign=(
    'uv.h|daemon/*.[ch] daemon/tier/* daemon/conn/* daemon/peer/* daemon/api/* daemon/metrics/*'
    'microhttpd.h|daemon/metrics/http*'
    'protobuf-c/*|daemon/conn/codec* client/codec*'
    'proto/kvcache.pb-c.h|daemon/conn/codec* client/codec*'
    'cuda*|kernels/pack_cuda* daemon/device/cuda*'
    'nvml*|daemon/device/cuda*'
    'ucp/*|daemon/peer/ucx*'
    'uct/*|daemon/peer/ucx*'
    'hiredis/*|daemon/peer/*'
    'jansson.h|client/ctl/*'
    'ini.h|daemon/config*'
    'check.h|'
)

matches_any() { # name pattern...
    local name=$1 pattern
    shift
    for pattern in "$@"; do
        # shellcheck disable=SC2053  # the right side is a pattern
        [[ $name == $pattern ]] && return 0
    done
    return 1
}

check_project_include() { # file room included
    local file=$1 room=$2 target=${3%/*}
    [ "$target" = "$room" ] && return
    [[ " ${may_include[$room]} " == *" $target "* ]] || complain "$file" "must not include $3"
}

check_foreign_include() { # file included
    local row pattern allowed
    for row in "${foreign[@]}"; do
        pattern=${row%%|*}
        # shellcheck disable=SC2053
        [[ $2 == $pattern ]] || continue
        read -ra allowed <<<"${row#*|}"
        matches_any "$1" "${allowed[@]}" || complain "$1" "must not include <$2>"
    done
}

count=0
while IFS=: read -r file included; do
    count=$((count + 1))
    room=${file%/*}
    if [ -z "${may_include[$room]+known}" ]; then
        complain "$file" "its folder is not in the table of scripts/check-layers.sh"
        continue
    fi
    check_foreign_include "$file" "$included"
    case $included in
    proto/kvcache.pb-c.h) ;;
    proto/* | kernels/* | daemon/* | client/*) check_project_include "$file" "$room" "$included" ;;
    tests/*) complain "$file" "must not include $included" ;;
    esac
done < <(find proto kernels daemon client -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null |
    sort | xargs -r grep -HoE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"][^>"]+' |
    sed -E 's/:[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]/:/')

# A quoted include names its file from the top of the tree, so that the table can judge it.
while IFS=: read -r file included; do
    [ -e "$included" ] || [ "$included" = proto/kvcache.pb-c.h ] ||
        complain "$file" "includes \"$included\", which is not a path from the top of the tree"
done < <(find proto kernels daemon client tests -name '*.[ch]' 2>/dev/null | sort |
    xargs -r grep -HoE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"[^"]+' |
    sed -E 's/:[[:space:]]*#[[:space:]]*include[[:space:]]*"/:/')

[ $status -eq 0 ] && echo "check-layers: ok, $count includes"
exit $status
