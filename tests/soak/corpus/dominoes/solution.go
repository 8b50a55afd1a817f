package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
)

func hasChain(first, last string, stones [][2]string) bool {
	if len(stones) == 0 {
		return first == last
	}
	for i, stone := range stones {
		rest := slices.Delete(slices.Clone(stones), i, i+1)
		for side, half := range stone {
			if half == last && hasChain(first, stone[1-side], rest) {
				return true
			}
		}
	}
	return false
}

func main() {
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadString('\n')
		if err != nil {
			break
		}
		var stones [][2]string
		for _, word := range strings.Fields(line) {
			a, b, _ := strings.Cut(word, "-")
			stones = append(stones, [2]string{a, b})
		}
		if hasChain(stones[0][0], stones[0][1], stones[1:]) {
			fmt.Println("yes")
		} else {
			fmt.Println("no")
		}
	}
}
