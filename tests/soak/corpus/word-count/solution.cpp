#include <iostream>
#include <iterator>
#include <map>
#include <regex>
#include <string>

int main() {
    std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    for (char &c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::map<std::string, int> counts;
    const std::regex pattern("[a-z0-9]+(?:'[a-z]+)*");
    for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
        const std::string word = it->str();
        ++counts[word];
    }
    for (const auto &[word, count] : counts) std::cout << word << ' ' << count << '\n';
}
