package main

import "fmt"

type roman int

var numerals = []struct {
	value roman
	text  string
}{
	{1000, "M"}, {900, "CM"}, {500, "D"}, {400, "CD"}, {100, "C"}, {90, "XC"}, {50, "L"},
	{40, "XL"}, {10, "X"}, {9, "IX"}, {5, "V"}, {4, "IV"}, {1, "I"},
}

func (r roman) String() (text string) {
	for _, numeral := range numerals {
		for r >= numeral.value {
			text += numeral.text
			r -= numeral.value
		}
	}
	return text
}

func main() {
	var n int
	for _, err := fmt.Scan(&n); err == nil; _, err = fmt.Scan(&n) {
		fmt.Printf("%v\n", roman(n))
	}
}
