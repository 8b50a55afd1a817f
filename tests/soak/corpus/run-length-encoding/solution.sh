encode() {
    local text=$1 result='' char run
    while [[ -n $text ]]; do
        char=${text:0:1} run=1
        while [[ ${text:run:1} == "$char" ]]; do ((run += 1)); done
        ((run > 1)) && result+=$run
        result+=$char text=${text:run}
    done
    printf '%s\n' "$result"
}

decode() {
    local text=$1
    while [[ $text =~ ^([0-9]*)([^0-9])(.*)$ ]]; do
        text=${BASH_REMATCH[3]}
        printf '%*s' "${BASH_REMATCH[1]:-1}" '' | tr ' ' "${BASH_REMATCH[2]}"
    done
    echo
}

while IFS= read -r line; do "${line%% *}" "${line#* }"; done
