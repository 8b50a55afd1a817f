def chain?(first, last, stones)
  return first == last if stones.empty?

  stones.each_with_index.any? do |(a, b), i|
    rest = stones[0...i] + stones[i + 1..]
    (a == last && chain?(first, b, rest)) || (b == last && chain?(first, a, rest))
  end
end

STDIN.each_line do |line|
  (first, last), *rest = line.split.map { |stone| stone.split('-').map(&:to_i) }
  puts chain?(first, last, rest) ? :yes : :no
end
