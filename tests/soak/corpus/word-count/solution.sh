declare -A counts
while IFS= read -r line || [[ -n $line ]]; do
    line=${line,,}
    while [[ $line =~ [a-z0-9]+(\'[a-z]+)* ]]; do
        word=${BASH_REMATCH[0]}
        counts[$word]=$((${counts[$word]:-0} + 1))
        line=${line#*"$word"}
    done
done
for word in "${!counts[@]}"; do
    echo "$word ${counts[$word]}"
done | LC_ALL=C sort
