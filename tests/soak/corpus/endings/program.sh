set -eu
read -r command rest
case $command in
    crash) echo "$missing" ;;
    spin) while :; do :; done ;;
    eat)
        LC_ALL=C eaten=x # not in UTF-8, which takes far longer
        while :; do eaten+=$eaten; done
        ;;
    sh) sh -c "$rest" ;;
esac
echo done
