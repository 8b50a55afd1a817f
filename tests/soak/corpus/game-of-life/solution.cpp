#include <iostream>
#include <string>
#include <vector>

class Board {
public:
    explicit Board(std::vector<std::string> rows) : rows_(std::move(rows)) {}

    Board next() const {
        auto rows = rows_;
        for (int y = 0; y < static_cast<int>(rows.size()); ++y)
            for (int x = 0; x < static_cast<int>(rows[y].size()); ++x) {
                const int near = neighbours(x, y);
                rows[y][x] = near == 3 || (near > 1 && near < 4 && alive(x, y)) ? '#' : '.';
            }
        return Board(std::move(rows));
    }

    friend std::ostream &operator<<(std::ostream &out, const Board &board) {
        for (const auto &row : board.rows_) out << row << '\n';
        return out;
    }

private:
    bool alive(int x, int y) const {
        return y >= 0 && y < static_cast<int>(rows_.size()) && x >= 0 && x < static_cast<int>(rows_[y].size()) && rows_[y][x] == '#';
    }

    int neighbours(int x, int y) const {
        int near = -alive(x, y);
        for (int j = y - 1; j <= y + 1; ++j)
            for (int i = x - 1; i <= x + 1; ++i) near += alive(i, j);
        return near;
    }

    std::vector<std::string> rows_;
};

int main() {
    int generations;
    std::cin >> generations;
    std::vector<std::string> rows;
    for (std::string row; std::cin >> row;) rows.push_back(row);
    Board board(rows);
    while (generations-- > 0) board = board.next();
    std::cout << board;
}
