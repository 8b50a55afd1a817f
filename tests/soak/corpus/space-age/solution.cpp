#include <iomanip>
#include <iostream>
#include <string>
#include <unordered_map>

int main() {
    const std::unordered_map<std::string, double> years{
        {"Mercury", 0.2408467}, {"Venus", 0.61519726}, {"Earth", 1.0},        {"Mars", 1.8808158},
        {"Jupiter", 11.862615}, {"Saturn", 29.447498}, {"Uranus", 84.016846}, {"Neptune", 164.79132},
    };
    std::string planet;
    double seconds;
    std::cout << std::fixed << std::setprecision(8);
    while (std::cin >> planet >> seconds) std::cout << seconds / 31557600 / years.at(planet) << '\n';
}
