#include <algorithm>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <vector>

std::vector<std::int64_t> factors(std::int64_t n) {
    std::vector<std::int64_t> found;
    for (std::int64_t d = 2; d * d <= n; ++d)
        for (; n % d == 0; n /= d) found.push_back(d);
    if (n > 1) found.push_back(n);
    return found;
}

int main() {
    for (std::int64_t n; std::cin >> n;) {
        const auto found = factors(n);
        std::copy(found.begin(), found.end(), std::ostream_iterator<std::int64_t>(std::cout, " "));
        std::cout << '\n';
    }
}
