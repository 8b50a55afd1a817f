#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using Stones = std::vector<std::pair<char, char>>;

bool has_chain(char first, char last, const Stones &stones) {
    if (stones.empty()) return first == last;
    for (std::size_t i = 0; i < stones.size(); ++i) {
        Stones rest = stones;
        rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
        auto [a, b] = stones[i];
        if ((a == last && has_chain(first, b, rest)) || (b == last && has_chain(first, a, rest))) return true;
    }
    return false;
}

int main() {
    for (std::string line, stone; std::getline(std::cin, line);) {
        Stones stones;
        for (std::istringstream words(line); words >> stone;) stones.emplace_back(stone[0], stone[2]);
        const auto [first, last] = stones.back();
        stones.pop_back();
        std::cout << (has_chain(first, last, stones) ? "yes" : "no") << '\n';
    }
}
