package main

import (
	"bufio"
	"fmt"
	"os"
)

func main() {
	var n, count, sum int
	fmt.Scan(&n)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	composite := make([]bool, n+1)
	for p := 2; p <= n; p++ {
		if composite[p] {
			continue
		}
		fmt.Fprintln(out, p)
		count++
		sum += p
		for m := p * p; m <= n; m += p {
			composite[m] = true
		}
	}
	fmt.Fprintln(out, count, sum)
}
