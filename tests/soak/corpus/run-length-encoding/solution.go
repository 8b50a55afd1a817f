package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

func encode(text string) string {
	var result strings.Builder
	for len(text) > 0 {
		run := len(text) - len(strings.TrimLeft(text, text[:1]))
		if run > 1 {
			result.WriteString(strconv.Itoa(run))
		}
		result.WriteByte(text[0])
		text = text[run:]
	}
	return result.String()
}

func decode(text string) string {
	var result strings.Builder
	length := 0
	for _, char := range text {
		if char >= '0' && char <= '9' {
			length = length*10 + int(char-'0')
			continue
		}
		result.WriteString(strings.Repeat(string(char), max(length, 1)))
		length = 0
	}
	return result.String()
}

func main() {
	coders := map[string]func(string) string{"encode": encode, "decode": decode}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		command, text, _ := strings.Cut(lines.Text(), " ")
		fmt.Println(coders[command](text))
	}
}
