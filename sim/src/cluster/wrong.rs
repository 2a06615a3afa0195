//! What is wrong with a file that a user wrote, and what to do about it.

use std::fmt;
use std::ops::Range;

/// An error in a file, with its place and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The file.
    pub file: String,
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what, remedy } = self;
        write!(f, "{file}:{line}: {what}; {remedy}")
    }
}

impl std::error::Error for Wrong {}

/// A file that is being read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    /// Reads the file as a `T`, whose keys are all there are.
    pub(crate) fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T, Wrong> {
        toml::from_str(self.text).map_err(|error| {
            let message = error.message();
            let (what, remedy) = message.split_once(", expected").map_or_else(
                || {
                    (
                        message.to_owned(),
                        "see the files in sim/presets for what is needed".to_owned(),
                    )
                },
                |(what, expected)| (what.to_owned(), format!("write{expected} instead")),
            );
            self.wrong(error.span().unwrap_or_default(), what, remedy)
        })
    }

    /// Something is wrong here.
    pub(crate) fn wrong(
        &self,
        span: Range<usize>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Wrong {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Wrong { file: self.name.to_owned(), line, what: what.into(), remedy: remedy.into() }
    }
}
