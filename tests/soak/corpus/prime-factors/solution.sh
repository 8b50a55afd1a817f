while read -r n; do
    found=()
    for ((d = 2; d * d <= n; d += 1 + (d > 2))); do
        while ((n % d == 0)); do
            found+=("$d")
            ((n /= d))
        done
    done
    ((n > 1)) && found+=("$n")
    echo "${found[*]}"
done
