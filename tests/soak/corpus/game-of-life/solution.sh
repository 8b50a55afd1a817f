read -r generations
mapfile -t board
height=${#board[@]} width=${#board[0]}
while ((generations-- > 0)); do
    next=()
    for ((y = 0; y < height; y++)); do
        row=''
        for ((x = 0; x < width; x++)); do
            near=0
            for ((j = y - 1; j <= y + 1; j++)); do
                for ((i = x - 1; i <= x + 1; i++)); do
                    ((j >= 0 && j < height && i >= 0 && i < width && (i != x || j != y))) || continue
                    [[ ${board[j]:i:1} == '#' ]] && ((near += 1))
                done
            done
            if ((near == 3)) || [[ $near == [23] && ${board[y]:x:1} == '#' ]]; then row+='#'; else row+=.; fi
        done
        next+=("$row")
    done
    board=("${next[@]}")
done
printf '%s\n' "${board[@]}"
