# Years in units of 1e-7 years of the Earth: bash has no floating point.
declare -A years=(
    [Mercury]=2408467 [Venus]=6151973 [Earth]=10000000 [Mars]=18808158
    [Jupiter]=118626150 [Saturn]=294474980 [Uranus]=840168460 [Neptune]=1647913200
)
while read -r planet seconds; do
    ((age = seconds * 10 ** 9 / 31557600 * 10 ** 7 / years[$planet]))
    printf '%d.%09d\n' $((age / 10 ** 9)) $((age % 10 ** 9))
done
