package main

import (
	"bufio"
	"fmt"
	"os"
)

type cell struct{ x, y int }

func main() {
	input := bufio.NewReader(os.Stdin)
	var generations, width, height int
	var row string
	fmt.Fscan(input, &generations)
	alive := map[cell]bool{}
	for ; ; height++ {
		if _, err := fmt.Fscan(input, &row); err != nil {
			break
		}
		width = len(row)
		for x, state := range row {
			if state == '#' {
				alive[cell{x, height}] = true
			}
		}
	}
	for range generations {
		near := map[cell]int{}
		for c := range alive {
			for dx := -1; dx <= 1; dx++ {
				for dy := -1; dy <= 1; dy++ {
					if dx != 0 || dy != 0 {
						near[cell{c.x + dx, c.y + dy}]++
					}
				}
			}
		}
		next := map[cell]bool{}
		for c, n := range near {
			inside := c.x >= 0 && c.x < width && c.y >= 0 && c.y < height
			if inside && (n == 3 || n > 1 && n < 4 && alive[c]) {
				next[c] = true
			}
		}
		alive = next
	}
	for y := range height {
		for x := range width {
			fmt.Print(map[bool]string{true: "#", false: "."}[alive[cell{x, y}]])
		}
		fmt.Println()
	}
}
