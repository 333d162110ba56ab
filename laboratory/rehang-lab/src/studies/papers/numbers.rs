//! Numbers and verdicts in the prose of the pages, which are read from the records where a page is made: a
//! place `{{=…}}` in a line of text.
//!
//! | place | what stands there |
//! |---|---|
//! | `{{=A}}` | the mean of a number over seeds |
//! | `{{=spread A}}` | mean ± standard deviation |
//! | `{{=range A; B; …}}` | the least and the largest of several means, or the one that all of them are |
//! | `{{=how A; B}}` | `above`, `level with` or `below`: how the first stands to the second |
//! | `{{=met STUDY \| METHOD \| PART \| METRIC}}` | in how many seeds BCT's criterion is met |
//!
//! A number is `RECORD | METHOD | PART | WHAT`, or two of them with `less` or `over` between. Of a study, WHAT
//! is a word and a metric (`map`, `top1`): `old` and `across` for M(old, old) and M(new, old), `own` and
//! `independent` for the new model's and the independent model's own search, `gain` and `loss` for what
//! `across` is above and below `old`, `up` and `down` for Δ↑ and Δ↓. Of a backfill it is the order, then
//! `area`, `lowest` or a percentage, and the metric, or `flips`. Of a vector set it is the order, then `area`,
//! `start`, `lowest` or `end`, and the metric. What is not measured yet stands as a dash.

use std::cmp::Ordering;

use rehang_core::comparison::{Measure, MethodOutcome, Quality};
use rehang_core::{Error, Result};

use super::cells::{Measured, rounded};
use super::compatible::Studies;
use super::units::{Row, SETS};

/// Stands for a number that is not measured yet.
const NOT_YET: &str = "–";

/// Records that numbers in prose are read from.
struct Numbers<'a> {
    units: &'a [Row],
    studies: &'a Studies,
}

/// Fills the places of a line of text.
pub fn filled(line: &str, units: &[Row], studies: &Studies) -> Result<String> {
    let numbers = Numbers { units, studies };
    let (mut text, mut rest) = (String::new(), line);
    while let Some((before, behind)) = rest.split_once("{{=") {
        let end = || Error::option("a place in prose", line, "one that ends with }}");
        let (place, after) = behind.split_once("}}").ok_or_else(end)?;
        text.push_str(before);
        text.push_str(&numbers.said(place.trim())?);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

impl Numbers<'_> {
    /// Says what a place asks for.
    fn said(&self, place: &str) -> Result<String> {
        let two = || Error::option("a place in prose", place, "two numbers with a ; between");
        match place.split_once(' ') {
            Some(("spread", number)) => Ok(shown(self.measured(number)?, |number| format!("{number}"))),
            Some(("range", several)) => {
                let means: Option<Vec<Measured>> =
                    several.split(';').map(|number| self.measured(number)).collect::<Result<_>>()?;
                Ok(shown(means, |means| {
                    let mean = means.iter().map(|number| number.mean);
                    let (least, largest) = mean.fold((f64::INFINITY, f64::NEG_INFINITY), |ends, mean| {
                        (ends.0.min(mean), ends.1.max(mean))
                    });
                    let [least, largest] = [least, largest].map(rounded);
                    if least == largest { least } else { format!("{least} to {largest}") }
                }))
            }
            Some(("how", pair)) => {
                let (number, other) = pair.split_once(';').ok_or_else(two)?;
                let pair = self.measured(number)?.zip(self.measured(other)?);
                let verdict = pair.map(|(number, other)| match number.compared(other) {
                    Ordering::Greater => "above",
                    Ordering::Equal => "level with",
                    Ordering::Less => "below",
                });
                Ok(verdict.unwrap_or("not yet held against").to_owned())
            }
            Some(("met", number)) => Ok(shown(self.values(number)?, |met| {
                let count = met.iter().filter(|gain| **gain > 0.0).count();
                match (count, met.len()) {
                    (0, _) => "no seed".into(),
                    (some, all) if some == all => "every seed".into(),
                    (some, all) => format!("{some} of {all} seeds"),
                }
            })),
            _ => Ok(shown(self.measured(place)?, |number| rounded(number.mean))),
        }
    }

    /// Gives mean and spread of a number over seeds; nothing where it is not measured yet.
    fn measured(&self, expression: &str) -> Result<Option<Measured>> {
        Ok(self.values(expression)?.and_then(|values| Measured::over_seeds(&values)))
    }

    /// Gives the values of an expression, one for each seed: of a number, or of two with a word between.
    fn values(&self, expression: &str) -> Result<Option<Vec<f64>>> {
        type Join = fn(f64, f64) -> f64;
        let joins: [(&str, Join); 2] =
            [(" less ", |left, right| left - right), (" over ", |left, right| left / right)];
        for (word, join) in joins {
            if let Some((left, right)) = expression.split_once(word) {
                let both = self.number(left)?.zip(self.number(right)?);
                return Ok(both.map(|(left, right)| {
                    left.into_iter().zip(right).map(|(left, right)| join(left, right)).collect()
                }));
            }
        }
        self.number(expression)
    }

    /// Gives the values of one number.
    fn number(&self, path: &str) -> Result<Option<Vec<f64>>> {
        let unknown = || Error::option("a number in prose", path, "RECORD | METHOD | PART | WHAT of a record");
        let words: Vec<&str> = path.split('|').map(str::trim).collect();
        let [record, method, part, what] = words[..] else { return Err(unknown()) };
        let what: Vec<&str> = what.split_whitespace().collect();
        let values: Option<Vec<f64>> = if SETS.contains(&record) {
            let [order @ .., point, metric] = &what[..] else { return Err(unknown()) };
            let order = order.join(" ");
            let is_here = |row: &&Row| {
                (row.set.as_str(), row.method.as_str(), row.part.as_str()) == (record, method, part)
                    && row.order == order
            };
            let mut rows: Vec<&Row> = self.units.iter().filter(is_here).collect();
            rows.sort_by_key(|row| row.seed);
            rows.into_iter().map(|row| of_row(row, point, metric)).collect()
        } else {
            let Some(study) = self.studies.measured(record)? else { return Ok(None) };
            study.outcomes(method, part).map(|outcome| of_outcome(outcome, &what)).collect()
        };
        values.filter(|values| !values.is_empty()).map(Some).ok_or_else(unknown)
    }
}

/// Writes what is measured, and a dash for what is not yet.
fn shown<T>(measured: Option<T>, write: impl Fn(T) -> String) -> String {
    measured.map_or_else(|| NOT_YET.to_owned(), write)
}

/// Reads the name of a metric.
fn measure(metric: &str) -> Option<Measure> {
    match metric {
        "top1" => Some(Measure::Top1),
        "map" => Some(Measure::Map),
        _ => None,
    }
}

/// Gives a number of a method's outcome in a study.
fn of_outcome(outcome: &MethodOutcome, what: &[&str]) -> Option<f64> {
    match *what {
        [order, "flips"] => Some(outcome.backfill(order)?.negative_flips),
        // The criterion is met where the gain is above 0.
        [metric] => of_outcome(outcome, &["gain", metric]),
        [end, metric] => {
            let measure = measure(metric)?;
            let value = |quality: Quality| Some(quality.value(measure));
            let gain = outcome.new_old.value(measure) - outcome.old_old.value(measure);
            match end {
                "old" => value(outcome.old_old),
                "across" => value(outcome.new_old),
                "own" => value(outcome.new_new),
                "independent" => value(outcome.best_best),
                "gain" => Some(gain),
                "loss" => Some(-gain),
                "up" => outcome.gain_up(measure),
                "down" => outcome.gain_down(measure),
                _ => None,
            }
        }
        [order, point, metric] => {
            let measure = measure(metric)?;
            let backfill = outcome.backfill(order)?;
            match point {
                "area" => Some(backfill.area.value(measure)),
                "lowest" => Some(backfill.min.value(measure)),
                share => {
                    let line = if measure == Measure::Top1 { &backfill.top1 } else { &backfill.map };
                    line.get(share.parse::<usize>().ok()?).copied()
                }
            }
        }
        _ => None,
    }
}

/// Gives a number of a vector set's row.
fn of_row(row: &Row, point: &str, metric: &str) -> Option<f64> {
    let pair = match point {
        "area" => row.area,
        "start" => row.start,
        "lowest" => row.minimum,
        "end" => row.end,
        _ => return None,
    };
    Some(pair[usize::from(measure(metric)? == Measure::Map)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::papers::units::read_units;
    use crate::studies::records::root;

    #[test]
    fn places_in_prose_say_what_the_records_say_and_nothing_else() {
        let (units, studies) = (read_units(&root()).unwrap(), Studies::read(&root()).unwrap());
        let said = |place: &str| filled(&format!("a {{{{={place}}}}} b"), &units, &studies);
        let bct = "dmu | bct | test";
        let says = |place: &str| said(place).unwrap();
        // The page of the record has 49.2 ± 2.0, 60.0 ± 2.2 and 22.1 ± 1.5 there.
        assert_eq!(says(&format!("{bct} | old map")), "a 49.2 b");
        assert_eq!(says(&format!("spread {bct} | across map")), "a 60.0 ± 2.2 b");
        let gain = says(&format!("{bct} | gain map"));
        assert_eq!(says(&format!("{bct} | across map less {bct} | old map")), gain);
        assert_eq!(says(&format!("range {bct} | old map; {bct} | across map")), "a 49.2 to 60.0 b");
        assert_eq!(says(&format!("range {bct} | old map; {bct} | old map")), "a 49.2 b");
        assert_eq!(says(&format!("how {bct} | across map; {bct} | old map")), "a above b");
        assert_eq!(says(&format!("how {bct} | gain map; {bct} | loss map")), "a above b");
        assert_eq!(says(&format!("met {bct} | map")), "a every seed b");
        assert_eq!(says("met dmu | independent | test | map"), "a no seed b");
        assert!(says("text_clinc150 | fct | seen | random area map").starts_with("a 48."));
        for wrong in ["dmu | bct | test", "dmu | no-such | test | old map", "no-such | bct | test | old map"] {
            assert!(said(wrong).is_err(), "{wrong}");
        }
        assert!(filled("a {{=dmu", &units, &studies).is_err());
    }
}
