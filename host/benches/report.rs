//! The table of results: on standard output, and in `bench/latest.json` of the target directory.

use crate::servers::directory;
use serde_json::json;
use std::fmt;
use std::path::PathBuf;

/// The median of the rounds, or why there is none.
pub type Measured = Result<f64, Missing>;

#[derive(Clone)]
pub enum Missing {
    /// Something that the row needs is not there.
    Absent(String),
    /// It failed.
    Void(String),
}

pub struct Row {
    pub name: String,
    pub ours: Measured,
    /// What ours is divided by, where the goal is a ratio.
    pub theirs: Option<Measured>,
    pub unit: &'static str,
    pub goal: Goal,
}

#[derive(Clone, Copy)]
pub enum Goal {
    /// Of ours to theirs.
    RatioAtLeast(f64),
    /// Of ours to theirs.
    RatioAtMost(f64),
    /// Of ours alone.
    AtMost(f64),
}

#[derive(Default)]
pub struct Report {
    pub rows: Vec<Row>,
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        match (&self.ours, &self.theirs) {
            (Ok(ours), Some(Ok(theirs))) => Some(ours / theirs),
            _ => None,
        }
    }

    /// Nothing where there was nothing to compare with.
    fn met(&self) -> Option<bool> {
        let ours = match self.ours {
            Ok(ours) => ours,
            Err(Missing::Void(_)) => return Some(false),
            Err(Missing::Absent(_)) => return None,
        };
        match self.goal {
            Goal::RatioAtLeast(least) => Some(self.ratio()? >= least),
            Goal::RatioAtMost(most) => Some(self.ratio()? <= most),
            Goal::AtMost(most) => Some(ours <= most),
        }
    }

    fn goal(&self) -> String {
        match self.goal {
            Goal::RatioAtLeast(least) => format!("at least {least}"),
            Goal::RatioAtMost(most) => format!("at most {most}"),
            Goal::AtMost(most) => format!("at most {most} {}", self.unit),
        }
    }

    fn cells(&self) -> [String; 7] {
        let value = |measured: &Measured| match measured {
            Ok(value) => number(*value),
            Err(Missing::Absent(_)) => "not measured".into(),
            Err(Missing::Void(_)) => "void".into(),
        };
        [
            self.name.clone(),
            value(&self.ours),
            self.theirs.as_ref().map_or("–".into(), value),
            self.unit.into(),
            self.ratio()
                .map_or("–".into(), |ratio| format!("{ratio:.2}")),
            self.goal(),
            match self.met() {
                Some(true) => "yes".into(),
                Some(false) => "**no**".into(),
                None => "–".into(),
            },
        ]
    }
}

/// With three digits at least, and none that a median of five rounds cannot know.
pub fn number(value: f64) -> String {
    match value {
        1000.0.. => format!("{}", (value / 10.0).round() * 10.0),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Report {
    /// Writes the JSON, and says where.
    pub fn write(&self) -> anyhow::Result<PathBuf> {
        let rows = self.rows.iter().map(|row| {
            json!({
                "name": row.name,
                "ours": row.ours.as_ref().ok(),
                "theirs": row.theirs.as_ref().and_then(|theirs| theirs.as_ref().ok()),
                "unit": row.unit,
                "ratio": row.ratio(),
                "goal": row.goal(),
                "met": row.met(),
            })
        });
        let text = serde_json::to_string_pretty(&Vec::from_iter(rows))?;
        let file = directory().join("latest.json");
        std::fs::create_dir_all(directory())?;
        std::fs::write(&file, text + "\n")?;
        Ok(file)
    }
}

/// Markdown, aligned so that it can also be read as it is, then why rows are missing.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["row", "ours", "theirs", "unit", "ratio", "goal", "met"].map(String::from);
        let cells = Vec::from_iter(self.rows.iter().map(Row::cells));
        let widths: [usize; 7] = std::array::from_fn(|column| {
            let all = cells.iter().chain([&head]);
            all.map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        });
        let line = |row: &[String; 7]| {
            let padded = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            format!("| {} |", Vec::from_iter(padded).join(" | "))
        };
        writeln!(f, "{}", line(&head))?;
        writeln!(f, "{}", line(&widths.map(|width| "-".repeat(width))))?;
        for row in &cells {
            writeln!(f, "{}", line(row))?;
        }
        for row in &self.rows {
            for measured in [Some(&row.ours), row.theirs.as_ref()].into_iter().flatten() {
                if let Err(Missing::Absent(why) | Missing::Void(why)) = measured {
                    writeln!(f, "{}: {why}", row.name)?;
                }
            }
        }
        Ok(())
    }
}
