//! Evaluates arithmetic in values: `(1+2)*3k`, or `8*4096` written as `8*$pagesize`.
//!
//! Supports `+ - * / % ^`, parentheses, and decimal and hexadecimal numbers with the option's units. As in fio,
//! division is real, and the result is truncated to an integer.

/// Maximum nesting of parentheses, which bounds the stack.
const DEPTH_MAX: u32 = 32;

/// Returns a unit's factor, or `None` for an unknown unit.
pub(crate) type Unit<'a> = &'a dyn Fn(&str) -> Option<f64>;

/// Returns whether `text` can only be an expression.
pub(crate) fn is_expression(text: &str) -> bool {
    text.starts_with('(')
}

/// Evaluates `text`.
///
/// # Errors
/// A sentence, if it is no expression or its value is outside 0 to 2^63.
pub(crate) fn evaluate(text: &str, unit: Unit) -> Result<u64, String> {
    let mut reader = Reader { text, rest: text.trim_start(), unit, depth: 0 };
    let value = reader.sum()?;
    if !reader.rest.is_empty() {
        return Err(reader.refused());
    }
    if !(0.0..9.2e18).contains(&value) {
        return Err(format!("'{text}' comes to {value}, which is not a number from 0 to 2^63"));
    }
    Ok(value as u64)
}

struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
    unit: Unit<'a>,
    depth: u32,
}

impl<'a> Reader<'a> {
    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        while let Some(operator) = self.take(&['+', '-']) {
            let other = self.product()?;
            value = if operator == '+' { value + other } else { value - other };
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.power()?;
        while let Some(operator) = self.take(&['*', '/', '%']) {
            let other = self.power()?;
            if operator != '*' && other == 0.0 {
                return Err(format!("'{}' divides by zero", self.text));
            }
            value = match operator {
                '*' => value * other,
                '/' => value / other,
                _ => value % other,
            };
        }
        Ok(value)
    }

    fn power(&mut self) -> Result<f64, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("'{}' nests too deep; write it with fewer parentheses", self.text));
        }
        let base = self.factor()?;
        let value = match self.take(&['^']) {
            Some(_) => base.powf(self.power()?),
            None => base,
        };
        self.depth -= 1;
        Ok(value)
    }

    fn factor(&mut self) -> Result<f64, String> {
        let value = if self.take(&['-']).is_some() {
            -self.power()?
        } else if self.take(&['(']).is_some() {
            let value = self.sum()?;
            self.take(&[')']).ok_or_else(|| format!("'{}' lacks a ')'", self.text))?;
            value
        } else {
            self.number()?
        };
        let name = self.word(|c| c.is_ascii_alphabetic());
        let unit = (self.unit)(&name.to_ascii_lowercase());
        unit.map(|unit| value * unit)
            .ok_or_else(|| format!("'{name}' in '{}' is not a unit", self.text))
    }

    fn number(&mut self) -> Result<f64, String> {
        if let Some(rest) = self.rest.strip_prefix("0x") {
            self.rest = rest;
            let digits = self.word(|c| c.is_ascii_hexdigit());
            return u64::from_str_radix(digits, 16)
                .map(|value| value as f64)
                .map_err(|_| self.refused());
        }
        let digits = self.word(|c| c.is_ascii_digit() || c == '.');
        digits.parse().map_err(|_| self.refused())
    }

    /// Takes the wanted letters from the front, and the blanks after them.
    fn word(&mut self, wanted: fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !wanted(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn take(&mut self, any: &[char]) -> Option<char> {
        let first = self.rest.chars().next().filter(|c| any.contains(c))?;
        self.rest = self.rest[1..].trim_start();
        Some(first)
    }

    fn refused(&self) -> String {
        format!("'{}' is not an expression such as (1+2)*4k", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{KbBase, byte_unit};
    use proptest::prelude::*;

    fn value(text: &str) -> Result<u64, String> {
        evaluate(text, &|unit| byte_unit(unit, KbBase::Binary).map(|bytes| bytes as f64))
    }

    #[test]
    fn operators_bind_as_in_school() {
        for (text, expected) in [
            ("(1+2)*3k", 9216),
            ("1+2*3", 7),
            ("(4k*2)", 8192),
            ("2^3^2", 512),
            ("7%4", 3),
            ("(10-4)/4", 1),
            ("(1+1)k", 2048),
            ("0x10 * 2", 32),
            ("-(2-5)", 3),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_has_no_value_is_refused() {
        for text in
            ["", "(", "(1", "1+", "1/0", "5-6", "2^99", "1x", "1 2", ")", "1..2", "0x", "((((("]
        {
            assert!(value(text).is_err(), "{text}");
        }
        assert!(value(&"(".repeat(100_000)).expect_err("deep").contains("too deep"));
        assert!(value(&"-".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in r"[0-9kx.()+*/%^ -]{0,40}|.{0,20}") {
            let _ = value(&text);
        }
    }
}
