#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

int main() {
    std::string command, rest;
    std::cin >> command;
    std::getline(std::cin, rest);
    if (command == "crash") std::cout << std::vector<int>{}.at(1);
    if (command == "spin")
        for (volatile bool spin = true; spin;) {
        }
    if (command == "eat")
        for (std::vector<std::vector<char>> eaten;;) eaten.emplace_back(1 << 20, 'x');
    if (command == "sh" && std::system(rest.c_str()) != 0) return 1;
    std::cout << "done\n";
}
