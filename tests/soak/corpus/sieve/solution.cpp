#include <iostream>
#include <vector>

int main() {
    long n, count = 0, sum = 0;
    std::cin >> n;
    std::vector<bool> composite(n + 1);
    for (long p = 2; p <= n; ++p) {
        if (composite[p]) continue;
        std::cout << p << '\n';
        ++count;
        sum += p;
        for (long m = p * p; m <= n; m += p) composite[m] = true;
    }
    std::cout << count << ' ' << sum << '\n';
}
