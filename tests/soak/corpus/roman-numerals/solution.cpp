#include <array>
#include <iostream>
#include <string>
#include <utility>

constexpr std::array<std::pair<int, const char *>, 13> numerals{{
    {1000, "M"}, {900, "CM"}, {500, "D"}, {400, "CD"}, {100, "C"}, {90, "XC"}, {50, "L"},
    {40, "XL"}, {10, "X"}, {9, "IX"}, {5, "V"}, {4, "IV"}, {1, "I"},
}};

std::string roman(int number) {
    std::string text;
    for (auto [value, numeral] : numerals)
        for (; number >= value; number -= value) text += numeral;
    return text;
}

int main() {
    for (int number; std::cin >> number;) std::cout << roman(number) << "\n";
}
