read -r n
composite=() count=0 sum=0
for ((p = 2; p <= n; p++)); do
    [[ -z ${composite[p]} ]] || continue
    echo "$p"
    ((count += 1, sum += p))
    for ((m = p * p; m <= n; m += p)); do composite[m]=1; done
done
echo "$count $sum"
