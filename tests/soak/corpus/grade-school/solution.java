import java.util.*;
import java.util.stream.Collectors;

record Student(String name, int grade) {}

public class GradeSchool {
    public static void main(String[] args) {
        Map<String, Student> students = new HashMap<>();
        for (var input = new Scanner(System.in); input.hasNext(); ) {
            var student = new Student(input.next(), input.nextInt());
            students.putIfAbsent(student.name(), student);
        }
        students.values().stream()
            .sorted(Comparator.comparing(Student::name))
            .collect(Collectors.groupingBy(Student::grade, TreeMap::new, Collectors.mapping(Student::name, Collectors.joining(" "))))
            .forEach((grade, names) -> System.out.println(grade + ": " + names));
    }
}
