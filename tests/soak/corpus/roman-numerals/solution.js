const DIGITS = [
  ["", "M", "MM", "MMM"],
  ["", "C", "CC", "CCC", "CD", "D", "DC", "DCC", "DCCC", "CM"],
  ["", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX", "XC"],
  ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"],
];
const roman = (number) => [...number.padStart(4, "0")].map((digit, place) => DIGITS[place][digit]).join("");

const numbers = require("fs").readFileSync(0, "utf8").trim().split("\n");
console.log(numbers.map(roman).join("\n"));
