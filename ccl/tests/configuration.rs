//! The documentation of the settings is what the table of settings says.

#[test]
fn the_documentation_of_the_settings_is_generated() {
    assert!(
        include_str!("../../docs/configuration.md") == ccl_core::settings::reference(),
        "docs/configuration.md is out of date: \
         run `cargo run -q -p ccl --example configuration > docs/configuration.md`"
    );
}
