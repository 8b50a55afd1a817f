#include <cctype>
#include <iostream>
#include <string>

std::string encode(const std::string &text) {
    std::string result;
    for (std::size_t i = 0, run; i < text.size(); i += run) {
        run = std::min(text.find_first_not_of(text[i], i), text.size()) - i;
        if (run > 1) result += std::to_string(run);
        result += text[i];
    }
    return result;
}

std::string decode(const std::string &text) {
    std::string result, digits;
    for (char c : text) {
        if (std::isdigit(static_cast<unsigned char>(c))) {
            digits += c;
            continue;
        }
        result.append(digits.empty() ? 1 : std::stoul(digits), c);
        digits.clear();
    }
    return result;
}

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        const std::string text = line.substr(7);
        std::cout << (line.starts_with("encode") ? encode(text) : decode(text)) << '\n';
    }
}
