values=(1000 900 500 400 100 90 50 40 10 9 5 4 1)
numerals=(M CM D CD C XC L XL X IX V IV I)

roman() {
    local number=$1 i
    for i in "${!values[@]}"; do
        while ((number >= values[i])); do
            printf %s "${numerals[i]}"
            ((number -= values[i]))
        done
    done
    echo
}

mapfile -t numbers
for number in "${numbers[@]}"; do roman "$number"; done
