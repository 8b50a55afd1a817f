command, rest = gets.chomp.split(' ', 2)
case command
when 'crash' then nil.crash
when 'spin' then loop {}
when 'eat'
  eaten = []
  loop { eaten << 'x' * (1 << 20) }
when 'sh' then system(rest, exception: true)
end
puts 'done'
