package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

var eaten [][]byte

func main() {
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	command, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch command {
	case "crash":
		var missing map[string]int
		missing["crash"] = 1
	case "spin":
		for {
		}
	case "eat":
		for {
			eaten = append(eaten, bytes.Repeat([]byte("x"), 1<<20))
		}
	case "sh":
		if err := exec.Command("sh", "-c", rest).Run(); err != nil {
			panic(err)
		}
	}
	fmt.Println("done")
}
