#include <iostream>
#include <stack>
#include <string>
#include <string_view>

bool is_paired(std::string_view line) {
    constexpr std::string_view opening = "([{", closing = ")]}";
    std::stack<std::size_t> open;
    for (char c : line) {
        if (auto kind = opening.find(c); kind != opening.npos) {
            open.push(kind);
        } else if (kind = closing.find(c); kind != closing.npos) {
            if (open.empty() || open.top() != kind) return false;
            open.pop();
        }
    }
    return open.empty();
}

int main() {
    std::string line;
    while (std::getline(std::cin, line)) std::cout << (is_paired(line) ? "yes\n" : "no\n");
}
