while IFS= read -r line; do
    stack=''
    for ((i = 0; i < ${#line}; i++)); do
        char=${line:i:1}
        case $char in
            '(') stack=")$stack" ;;
            '[') stack="]$stack" ;;
            '{') stack="}$stack" ;;
            [\)\]\}])
                [[ $stack == "$char"* ]] || stack="!$stack"
                stack=${stack#"$char"}
                ;;
        esac
    done
    if [[ -z $stack ]]; then echo yes; else echo no; fi
done
