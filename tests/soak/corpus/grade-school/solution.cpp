#include <iostream>
#include <map>
#include <set>
#include <string>

int main() {
    std::map<std::string, int> grades;
    std::string name;
    for (int grade; std::cin >> name >> grade;) grades.emplace(name, grade);
    std::map<int, std::set<std::string>> roster;
    for (const auto &[each, grade] : grades) roster[grade].emplace(each);
    for (const auto &[grade, names] : roster) {
        std::cout << grade << ':';
        for (const auto &each : names) std::cout << ' ' << each;
        std::cout << std::endl;
    }
}
