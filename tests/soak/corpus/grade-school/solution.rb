grades = {}
ARGF.each do |line|
  name, grade = line.split
  grades[name] ||= Integer(grade)
end
grades.group_by(&:last).sort.each do |grade, students|
  puts "#{grade}: #{students.map(&:first).sort.join(' ')}"
end
