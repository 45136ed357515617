// The workbook's charts as a dashboard of Grafana in the portal: Azure Monitor, Dashboards with Grafana. Nothing is paid for it. The type of its
// content is a preview. infra/grafana/tidemark.json is made from workbook.bicep, by tests/data/make_grafana.py.

@description('Name of the dashboard: 2 to 30 letters, digits and hyphens.')
@minLength(2)
@maxLength(30)
param name string

@description('Name of the Log Analytics workspace, which has the functions of queries.bicep.')
param workspaceName string

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' existing = {
  name: workspaceName
}

resource dashboard 'Microsoft.Dashboard/dashboards@2025-08-01' = {
  name: name
  location: location
  tags: union(tags, {
    GrafanaDashboardResourceType: 'microsoft.operationalinsights/workspaces'
  })
  properties: {}
}

resource content 'Microsoft.Dashboard/dashboards/dashboardDefinitions@2025-09-01-preview' = {
  parent: dashboard
  name: 'default'
  properties: {
    serializedData: replace(loadTextContent('../grafana/tidemark.json'), '__workspace__', workspace.id)
  }
}
