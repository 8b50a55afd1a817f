n = gets.to_i
composite = Array.new(n + 1, false)
primes = (2..n).each_with_object([]) do |p, found|
  next if composite[p]

  found << p
  (p * p).step(n, p) { |m| composite[m] = true }
end
puts primes
puts "#{primes.size} #{primes.sum}"
