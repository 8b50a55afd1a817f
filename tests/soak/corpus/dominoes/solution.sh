has_chain() {
    local first=$1 last=$2 i stone
    shift 2
    (($# > 0)) || { [[ $first == "$last" ]]; return; }
    for ((i = 1; i <= $#; i++)); do
        stone=${!i}
        [[ ${stone%-*} == "$last" ]] && has_chain "$first" "${stone#*-}" "${@:1:i-1}" "${@:i+1}" && return 0
        [[ ${stone#*-} == "$last" ]] && has_chain "$first" "${stone%-*}" "${@:1:i-1}" "${@:i+1}" && return 0
    done
    return 1
}

while read -ra stones; do
    if has_chain "${stones[0]%-*}" "${stones[0]#*-}" "${stones[@]:1}"; then echo yes; else echo no; fi
done
