package main

import (
	"bufio"
	"fmt"
	"os"
)

func isPaired(line string) bool {
	pairs := map[rune]rune{')': '(', ']': '[', '}': '{'}
	var stack []rune
	for _, char := range line {
		switch char {
		case '(', '[', '{':
			stack = append(stack, char)
		case ')', ']', '}':
			if len(stack) == 0 || stack[len(stack)-1] != pairs[char] {
				return false
			}
			stack = stack[:len(stack)-1]
		}
	}
	return len(stack) == 0
}

func main() {
	answers := map[bool]string{true: "yes", false: "no"}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(answers[isPaired(lines.Text())])
	}
}
