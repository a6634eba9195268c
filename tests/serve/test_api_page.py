from protograph.serve.api_page import render_api


def test_the_page_shows_routes_and_fields_as_text() -> None:
    described = {
        "info": {"title": "<b>T</b>", "version": "1", "description": "First.\n\nSecond."},
        "paths": {
            "/api/x": {
                "post": {
                    "tags": ["ask"],
                    "summary": "S",
                    "description": "Ask <i>x</i> by `<y>`.",
                    "security": [{"token": []}],
                    "parameters": [{"name": "index", "required": True, "schema": {"type": "integer"}}],
                    "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}},
                    "responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Reply"}}}}},
                }
            }
        },
        "components": {
            "schemas": {
                "Body": {
                    "required": ["a"],
                    "properties": {
                        "a": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "The <a>."},
                        "b": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    },
                },
                "Reply": {"properties": {"c": {"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "boolean"}]}}},
            }
        },
    }
    page = render_api(described)
    assert "<b>" not in page
    assert "&lt;b&gt;T&lt;/b&gt;" in page
    assert "Ask &lt;i&gt;x&lt;/i&gt; by <code>&lt;y&gt;</code>. It needs the token." in page
    assert "<td>file, several, optional</td>" in page
    assert "<td>whole number</td>" in page
    assert "<td>text</td><td>The &lt;a&gt;.</td>" in page
    assert "<caption>answer</caption>" in page
    assert "<td>number or true or false</td>" in page
