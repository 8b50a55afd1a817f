declare -A known
while read -r name grade || [[ -n $name ]]; do
    [[ -v known[$name] ]] || echo "$grade $name"
    known[$name]=1
done | LC_ALL=C sort -k1,1n -k2 | {
    last=''
    while read -r grade name; do
        [[ $grade == "$last" ]] || printf '%s%s:' "${last:+$'\n'}" "$grade"
        printf ' %s' "$name"
        last=$grade
    done
    echo
}
