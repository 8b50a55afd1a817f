def factors(n)
  found = []
  d = 2
  loop do
    break if d * d > n

    if (n % d).zero?
      found << d
      n /= d
    else
      d += 1
    end
  end
  n > 1 ? found << n : found
end

$stdin.each_line { |line| puts factors(line.to_i).join(' ') }
