package main

import (
	"fmt"
	"sort"
)

type person struct {
	name  string
	grade int
}

func main() {
	var people []person
	known := map[string]bool{}
	for {
		var p person
		if n, _ := fmt.Scan(&p.name, &p.grade); n < 2 {
			break
		}
		if !known[p.name] {
			people = append(people, p)
		}
		known[p.name] = true
	}
	sort.Slice(people, func(i, j int) bool {
		if people[i].grade != people[j].grade {
			return people[i].grade < people[j].grade
		}
		return people[i].name < people[j].name
	})
	for i, p := range people {
		if i == 0 || p.grade != people[i-1].grade {
			if i > 0 {
				fmt.Println()
			}
			fmt.Print(p.grade, ":")
		}
		fmt.Print(" ", p.name)
	}
	fmt.Println()
}
