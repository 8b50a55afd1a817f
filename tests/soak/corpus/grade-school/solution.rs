use std::collections::{BTreeMap, HashMap};
use std::io;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut grades = HashMap::new();
    for line in io::stdin().lines() {
        let line = line?;
        let (name, grade) = line.split_once(' ').ok_or("no grade")?;
        grades.entry(name.to_string()).or_insert(grade.parse::<u8>()?);
    }
    let mut roster: BTreeMap<u8, Vec<String>> = BTreeMap::new();
    for (name, grade) in grades {
        roster.entry(grade).or_default().push(name);
    }
    for (grade, names) in &mut roster {
        names.sort();
        println!("{grade}: {}", names.join(" "));
    }
    Ok(())
}
