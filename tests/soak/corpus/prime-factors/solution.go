package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

func factors(n int64) (found []string) {
	for d := int64(2); d*d <= n; d++ {
		for ; n%d == 0; n /= d {
			found = append(found, strconv.FormatInt(d, 10))
		}
	}
	if n > 1 {
		found = append(found, strconv.FormatInt(n, 10))
	}
	return found
}

func main() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		n, err := strconv.ParseInt(lines.Text(), 10, 64)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(strings.Join(factors(n), " "))
	}
}
